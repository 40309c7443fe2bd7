"""A kind cluster where no image can be pulled: Docker, kind and the nodes' image from packages.

Docker is Debian's, in a network namespace of its own; kind is built from its Go module; the nodes'
image is made of Debian, of kind's own files for it, and of the Kubernetes that the local cluster
is built from. ``python -m e2e.cluster.kind_image --help`` has the commands. Where images can be
pulled, ``--cluster kind`` by itself takes kind's own.
"""
