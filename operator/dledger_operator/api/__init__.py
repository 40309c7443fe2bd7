"""The custom resources as values: fields, names, reasons. Pure."""
