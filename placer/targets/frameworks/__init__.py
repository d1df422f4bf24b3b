"""Layouts in the words of other frameworks.

plan --hybrid_layout--> HybridLayout --lacks--> reasons, or --text--> a file      one module a framework
file --torchtitan_file, megatron_file--> pins --search--> plan                    what was made by hand
"""
