"""`python -m routing_gym.cli`, where the script `routing-gym` is not on the path."""

from routing_gym.cli import main

if __name__ == "__main__":
    main()
