"""Pure tensor functions: no networks, no state, no random numbers. Tested on numbers worked out by hand."""
