"""What feeds a device from here, stage by stage: measured, composed, and what would be better."""
