"""One target with numbers changed (`simulate --set`, `sweep`)."""
