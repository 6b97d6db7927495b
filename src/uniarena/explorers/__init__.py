"""How an action is picked while learning, and bonuses that draw the agent to what it does not know."""
