"""New experiments with real vLLM: campaigns, servers, clients, power, and what they leave."""
