"""Notifications: people who look elsewhere are told what happens to runs."""
