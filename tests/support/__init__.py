"""What tests share: worlds on real servers, writers, disturbances, and what they are compared with."""
