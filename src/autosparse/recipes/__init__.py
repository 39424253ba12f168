"""Recipes: their code beside their YAML."""
