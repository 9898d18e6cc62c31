"""What both environment families share: configs, seeding, compilation, spaces and vectorisation."""
