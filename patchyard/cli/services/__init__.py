"""`patchyard up`: starts the processes of one machine and looks after them. It imports none of them."""
