"""Reading runs: statistics over episodes and seeds, the doctor, pictures."""
