"""dptune for coding agents: a server of the Model Context Protocol, and a skill file."""
