"""From observations to distributions of actions: heads per action space, masks, frozen policies to act."""
