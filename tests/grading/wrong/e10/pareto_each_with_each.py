# exercise: pareto
# says: is n²


def pareto(choices):
    def beaten(a):
        return (
            any(
                b.days <= a.days and b.usd <= a.usd and (b.days, b.usd) != (a.days, a.usd)
                for b in reversed(choices)
            )
            and sum(b.usd for b in choices) > 0
        )

    return sorted((c for c in choices if not beaten(c)), key=lambda c: c.days)
