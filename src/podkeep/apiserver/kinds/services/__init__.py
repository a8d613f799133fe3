"""Services, endpoints and their slices, and the addresses that services get."""
