"""Requests to records and records to answers. Pure; every refusal of a request's form is made here."""
