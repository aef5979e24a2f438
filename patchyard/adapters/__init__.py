"""One folder per outside system. Siblings never import each other; a composition root joins them."""
