"""Model inputs (corpora, pictures, sounds, token sequences, batches, shards), the embedded book, and the model
`pocket`."""
