"""Pipeline parallelism: layers cut into stages, schedules as data, and the executor that runs
them.
"""
