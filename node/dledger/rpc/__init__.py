"""gRPC servicers and clients: translate, call one method, translate back."""
