version: str
cuda_version: str
