"""Doubles that ship with the library, for Patchyard's tests and for its users'."""
