"""The tests, a package so that one file may use what another makes; another distribution installs the same name."""
