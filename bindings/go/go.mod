module libnsa/nsa

go 1.19
