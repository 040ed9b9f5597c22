"""Try a remedy on a model: diagnose, change, train beside a control, measure again."""
