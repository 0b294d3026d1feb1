"""Where traces lie: paths, URLs, run folders."""
