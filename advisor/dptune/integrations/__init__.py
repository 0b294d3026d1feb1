"""`dptune.profile` as a callback of training frameworks: one file per framework, imported by nobody but the user."""
