module lab-contender-net-http

go 1.25.0
