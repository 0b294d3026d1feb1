"""What differs between many ranks: late ranks and what they share, slow GPUs, slow links, unsteady hosts."""
