"""What models read: corpora, pictures and sounds, token sequences, batches, shards; the embedded book and `pocket`."""
