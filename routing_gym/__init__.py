"""Routing Gym: LLM request routing as Gymnasium environments.

Importing this package registers `routing_gym/InferenceCluster-v0` and its vector-reward twin
`routing_gym/mo-InferenceCluster-v0`.
"""

from routing_gym.policy import Policy, Yardstick, list_policies, make_policy
from routing_gym.registration import register_environments

__version__ = "0.1.0"
__all__ = ["Policy", "Yardstick", "list_policies", "make_policy", "register_environments"]

register_environments()
