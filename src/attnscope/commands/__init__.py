"""NEW PACKAGE attnscope.commands"""
