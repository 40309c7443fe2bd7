module dledger.io/e2e/kindnode

go 1.25.0
