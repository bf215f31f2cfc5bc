"""What the images are made of, pinned: packages by sha256, base images by digest.

Enters: constraints.txt, pyproject.toml, the image names of the Dockerfile and docker-compose.yml; pip's and Docker's answers.
Leaves: the files of locks/, and images.env. Must not know: the service's and the worker's code, addresses of indexes and
registries.
"""
