"""What a reader sees of a result: tables for terminals and pages, pictures, one self-contained HTML file."""
