"""The rules that ship with dptune: a pack like any other, found through the entry point `dptune.rules`."""
