//! Reads the rows of the config API as generously as they look in the field.
