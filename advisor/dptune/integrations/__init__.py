"""`dptune.profile` as a callback of training frameworks: one module per framework, imported only by user code."""
