"""Which turn a request continues: canonical messages, matching of echoes, the tree of turns, fork reasons. (pure)"""
