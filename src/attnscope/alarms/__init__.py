"""Rules that turn looks into alarms, one file each. None imports another, and none needs torch."""
