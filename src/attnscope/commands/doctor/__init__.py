"""NEW PACKAGE attnscope.commands.doctor"""
