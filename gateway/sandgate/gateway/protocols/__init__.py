"""API dialects of agents: OpenAI chat requests, answers, streams and errors as bytes. (pure)"""
