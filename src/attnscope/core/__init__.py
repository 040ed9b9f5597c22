"""What a measure, a card, a finding and an error are. No torch here."""
