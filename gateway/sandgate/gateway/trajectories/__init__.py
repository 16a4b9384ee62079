"""From turns to training rows: linearization, credit of rewards, groups, leases, AReaL's interactions. (pure)"""
