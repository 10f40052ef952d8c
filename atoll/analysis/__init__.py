"""What finished runs say: compare them, take advice from them, find where two of them part."""
