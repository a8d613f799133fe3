"""Requests: routing, content types, lists, watches, Tables, discovery, OpenAPI, health, metrics, audit."""
