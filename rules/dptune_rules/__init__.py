"""The rules that come with dptune: a pack like anyone else's, found through the entry point `dptune.rules`."""
