"""The ground floor: what every module may use."""
