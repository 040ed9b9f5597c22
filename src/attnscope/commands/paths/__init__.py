"""What paths of each length contribute to an answer, and what each head is worth."""
